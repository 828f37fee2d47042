"""A way to split a model over devices, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """``pp`` × ``sp`` pipeline stages of ``tp`` devices each; its text is for people."""

    pp: int = 1
    tp: int = 1
    sp: int = 1
    layers: tuple[int, ...] = ()
    """Layers of each stage; empty: not said."""
    micro_batching: bool = True
    """With pp above 1. False: all sequences form one batch."""

    def __str__(self) -> str:
        details = ["+".join(map(str, self.layers)) + " layers"] if self.layers else []
        details += [] if self.micro_batching else ["one batch"]
        return f"PP {self.pp}, TP {self.tp}, SP {self.sp}" + (f" ({', '.join(details)})" if details else "")

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.pp * self.sp

    @property
    def micro_batches(self) -> int:
        """Batches that take turns."""
        return self.pp if self.micro_batching else 1

    def steps_in_flight(self, batch: int) -> int:
        """Steps that are on their way at once while ``batch`` sequences decode."""
        return self.sp * min(self.micro_batches, batch)
