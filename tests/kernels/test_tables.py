"""Every operation of the contract has a reference, and nothing else stands in the table."""

from dataclasses import fields

from kernels.ops import Ops
from kernels.tables import reference_ops


def test_every_operation_has_a_reference_named_as_its_field() -> None:
    table = reference_ops()
    for field in fields(Ops):
        operation = getattr(table, field.name)
        assert operation.__name__ == field.name
        assert operation.__module__.endswith(".reference")


def test_no_two_fields_share_one_operation() -> None:
    table = reference_ops()
    operations = [getattr(table, field.name) for field in fields(Ops)]
    assert len(set(operations)) == len(operations)
