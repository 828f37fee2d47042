"""The six workloads of papers/apex, as a table; ``services/common/workloads`` makes them."""
