"""The mathematics of HACPO: pure functions of tensors and arrays, no models, no I/O."""
