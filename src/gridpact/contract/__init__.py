"""The launch contract as data: clauses, the cases that prove them, and the kernels that write what they saw."""
