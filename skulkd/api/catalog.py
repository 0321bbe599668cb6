"""Which card a model's name means on this node."""

from protocol.ids import ModelId
from protocol.state import ClusterState
from skulkd.api.ports import CatalogModel, Models
from skulkd.api.views import merged_catalog


async def find_here(models: Models, state: ClusterState, model_id: ModelId) -> CatalogModel | None:
    """Find the card that the cluster keeps, or else this node's own."""
    return merged_catalog(await models.catalog(), state).get(model_id)


async def find_model(models: Models, state: ClusterState, model_id: ModelId) -> CatalogModel | None:
    """Find the card that the cluster keeps, this node's own, or else another node's."""
    return await find_here(models, state, model_id) or await models.elsewhere(model_id)
