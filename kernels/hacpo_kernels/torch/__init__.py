"""Backends in plain torch operations: any device, no compiler, one file per operator."""
