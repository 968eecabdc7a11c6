"""What of torch goes into the executable. Each exclusion has its reason; what is not named is followed.

PyInstaller reads this file's names: datas, binaries, hiddenimports, excludedimports, module_collection_mode.
"""

from pathlib import Path

from PyInstaller.utils.hooks import PY_DYLIB_PATTERNS, collect_dynamic_libs, copy_metadata, get_package_paths

# torch.jit and torch.utils._config_module read their own sources at import.
module_collection_mode = "pyz+py"
datas = copy_metadata("torch")  # others ask importlib.metadata for torch's version
hiddenimports = ["torch._C", "torch._VF"]
excludedimports = [
    "torch._dynamo",  # torch.compile: needs a compiler and sources; does not run frozen
    "torch._inductor",  # its code generators
    "torch.onnx",  # writes ONNX files
    "torch.utils.tensorboard",  # training logs
    "torch.utils.benchmark",  # timers that compile C++
    "torch.utils.bottleneck",  # a profiler's command line
    "torch.utils.cpp_extension",  # builds extensions
    "torch.utils.hipify",  # rewrites CUDA sources
    "torch.distributed.pipelining",  # training
    "torch.distributed.elastic",  # training
    "sympy",  # symbolic shapes of torch.compile
    "networkx",  # graph passes of torch.compile
    "matplotlib",  # plots of torch.ao
    "IPython",
    "pytest",
    "mpmath",  # sympy's
]
_TEST_LIBRARIES = (
    "_test.so",
    "backend_with_compiler",
    "aoti_custom_ops",
    "torchbind_test",
    "jitbackend_test",
)
binaries = [
    (source, target)
    for source, target in collect_dynamic_libs("torch", search_patterns=[*PY_DYLIB_PATTERNS, "*.so.*"])
    if Path(target).as_posix().endswith("torch/lib") and not any(name in source for name in _TEST_LIBRARIES)
]
# One copy of each library, found through torch's own rpath.
bindepend_symlink_suppression = ["**/torch/lib/*.so*"]
_manager = Path(get_package_paths("torch")[1]) / "bin" / "torch_shm_manager"
if _manager.is_file():  # `import torch` looks for it on Linux and macOS
    binaries.append((str(_manager), "torch/bin"))
