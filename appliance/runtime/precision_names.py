"""Words for precisions that loading tells apart before it knows a backend."""

INT8 = ("int8", "int8-mixed")
BITSANDBYTES = ("nf4", "llm.int8")
