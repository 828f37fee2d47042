"""Where a stage stands among the others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StagePlace:
    """Where a stage stands: pipeline rank of ``stages``, tensor rank of ``tensor_ranks``."""

    pipeline_rank: int
    tensor_rank: int
    stages: int
    tensor_ranks: int
    rendezvous: str
    """host:port where torch.distributed's ranks meet."""
    layer_partition: tuple[int, ...] = ()
    """Layers of each stage, first to last; empty: split evenly."""
    draft_adapter: str = ""
    """Folder of the draft adapter; empty: the replica does not speculate."""
    generation: int = 0
    """The scheduler generation that the stage serves."""
    embedding_on_host: bool = False
    """The first stage keeps the token embedding's weight in host memory."""

    predictor_layer: int = 0
    """Layers before the states that the predictor of remaining lengths reads; 0: the replica has none."""

    @property
    def rank(self) -> int:
        """Global rank, as vLLM counts: pipeline-major."""
        return self.pipeline_rank * self.tensor_ranks + self.tensor_rank

    @property
    def is_first(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def is_last(self) -> bool:
        return self.pipeline_rank == self.stages - 1

    @property
    def embeds_on_host(self) -> bool:
        """Only the first stage embeds."""
        return self.is_first and self.embedding_on_host

    @property
    def reports_output(self) -> bool:
        """Exactly one rank reports what was sampled."""
        return self.is_last and self.tensor_rank == 0
