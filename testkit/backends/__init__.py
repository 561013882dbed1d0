"""What every keyed state backend promises, as a pytest class that the author of a backend subclasses.

    from testkit.backends import StateBackendContract

    class TestPagedStateBackend(StateBackendContract):
        def create_state_backend(self) -> StateBackend:
            return PagedStateBackend()

pytest must be installed; nothing else of the project imports this package.
"""

import pytest

_ASSERTING_MODULES = (
    "backend_configuration_contract",
    "asynchronous_snapshot_contract",
    "folding_state_contract",
    "key_enumeration_contract",
    "keyed_context_contract",
    "list_state_contract",
    "map_state_contract",
    "merging_contract",
    "migration_contract",
    "namespace_contract",
    "priority_queue_contract",
    "priority_queue_restore_contract",
    "reconfiguration_contract",
    "rescale_contract",
    "snapshot_contract",
    "state_metrics_contract",
    "ttl_cleanup_contract",
    "ttl_restore_contract",
    "ttl_state_contract",
    "union_contract",
    "value_state_contract",
)

# Only modules that are imported after this call show what the two sides of a failed assertion were.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _ASSERTING_MODULES))

from testkit.backends.harness import BackendHarness  # noqa: E402
from testkit.backends.state_backend_contract import StateBackendContract  # noqa: E402

__all__ = ["BackendHarness", "StateBackendContract"]
