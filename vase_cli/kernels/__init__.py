"""The operations that decide what a device's speed is: in plain torch, and as Triton kernels of the same results."""
