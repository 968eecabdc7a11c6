"""The native CPU engine: C++ in `src`, its build, and its Python binding."""
