"""The contract of a `StateBackend`: it is pickled for workers, found by its name, and creates backends for epochs."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.state_backend import StateBackend, SubtaskIdentity, state_backend
from statebackend.state.state_meta import CANONICAL_BACKEND
from statebackend.testing.backends.harness import VALUE, BackendHarness, ContractBase, contents, fill, filled

KEYS = range(20)


def readable_by_others(directory: Path) -> Iterator[Path]:
    """Yield the files in a directory that the group or all users can open."""
    for path in directory.iterdir():
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            if path.is_dir():
                yield from readable_by_others(path)
            else:
                yield path


class BackendConfigurationContract(ContractBase):
    """Pickling, naming and use of a `StateBackend`."""

    def lease(
        self,
        harness: BackendHarness,
        configuration: StateBackend,
        *restore: KeyedStateHandle,
        subtask: int = 0,
        parallelism: int = 1,
        local: str = "leased",
    ) -> tuple[KeyedStateBackend, SubtaskIdentity]:
        """Lease a backend of one subtask for an epoch. A subtask always has the same local directory."""
        identity = SubtaskIdentity(f"job in {harness.directory}", subtask, parallelism)
        parameters = harness.parameters(
            *restore, subtask=subtask, parallelism=parallelism, local=f"{local}-{subtask}-of-{parallelism}"
        )
        return configuration.lease_keyed_state_backend(parameters, identity), identity

    def first_epoch(
        self, harness: BackendHarness, configuration: StateBackend
    ) -> tuple[KeyedStateHandle, SubtaskIdentity]:
        """Write the keys in an epoch. Return its snapshot."""
        backend, identity = self.lease(harness, configuration)
        fill(harness, backend, KEYS)
        base = harness.snapshot(backend).handle
        configuration.return_keyed_state_backend(backend, identity, succeeded=True)
        return base, identity

    def test_a_configuration_can_be_pickled(self, harness: BackendHarness) -> None:
        travelled = pickle.loads(pickle.dumps(self.create_state_backend()))
        assert travelled.name == self.create_state_backend().name
        backend = harness.open(travelled)
        fill(harness, backend, KEYS)
        assert contents(harness, backend) == filled(KEYS, 0)

    def test_a_backend_is_found_by_the_name_in_its_handles(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        # The backend with this name exports savepoints.
        fill(harness, backend, KEYS)
        handle = harness.snapshot(backend).handle
        assert handle.backend == self.create_state_backend().name
        found = state_backend(handle.backend)
        assert type(found) is type(self.create_state_backend())
        assert contents(harness, harness.open(found, handle)) == filled(KEYS, 0)

    def test_it_restores_its_own_handles_and_canonical_ones(self) -> None:
        backend = self.create_state_backend()
        assert backend.can_restore(backend.name)
        assert backend.can_restore(CANONICAL_BACKEND)
        assert not backend.can_restore("someone-else")

    def test_borrowed_backends_continue_over_epochs(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        handles: list[KeyedStateHandle] = []
        for epoch in range(4):
            backend, identity = self.lease(harness, configuration, *handles[-1:])
            fill(harness, backend, KEYS, epoch)
            handles.append(harness.snapshot(backend).handle)
            configuration.return_keyed_state_backend(backend, identity, succeeded=True)
        for epoch, handle in enumerate(handles):
            assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, *range(epoch + 1))

    def test_state_handles_raise_after_their_backend_is_returned(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        for succeeded in (True, False):
            backend, identity = self.lease(harness, configuration, local=f"returned-{succeeded}")
            harness.at(backend, 1)
            state = backend.get_state(VALUE)
            state.update(1)
            handle = harness.snapshot(backend).handle
            configuration.return_keyed_state_backend(backend, identity, succeeded=succeeded)
            again, _ = self.lease(harness, configuration, handle, local=f"returned-{succeeded}")
            harness.at(again, 1)
            with pytest.raises(StateBackendClosedError):
                state.value()
            assert again.get_state(VALUE).value() == 1
            configuration.return_keyed_state_backend(again, identity, succeeded=False)

    def test_a_failed_epoch_leaves_nothing(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        base, identity = self.first_epoch(harness, configuration)
        for takes_snapshot in (False, True):
            failed, _ = self.lease(harness, configuration, base)
            fill(harness, failed, range(30), 9)
            if takes_snapshot:
                harness.snapshot(failed)
            configuration.return_keyed_state_backend(failed, identity, succeeded=False)
            again, _ = self.lease(harness, configuration, base)
            assert contents(harness, again) == filled(KEYS, 0)
            configuration.return_keyed_state_backend(again, identity, succeeded=False)

    def test_a_backend_of_a_losing_attempt_is_not_reused(self, harness: BackendHarness) -> None:
        configuration, other = self.create_state_backend(), self.create_state_backend()
        base, identity = self.first_epoch(harness, configuration)
        loser, _ = self.lease(harness, configuration, base)
        fill(harness, loser, KEYS, 1)
        harness.snapshot(loser)
        configuration.return_keyed_state_backend(loser, identity, succeeded=True)
        winner = harness.open(other, base)
        fill(harness, winner, KEYS, 2)
        won = harness.snapshot(winner).handle
        again, _ = self.lease(harness, configuration, won)
        assert contents(harness, again) == filled(KEYS, 0, 2)
        configuration.return_keyed_state_backend(again, identity, succeeded=False)

    def test_a_replay_starts_from_the_state_before_the_epoch(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        base, identity = self.first_epoch(harness, configuration)
        for offset in (1, 2):
            replayed, _ = self.lease(harness, configuration, base)
            fill(harness, replayed, KEYS, offset)
            handle = harness.snapshot(replayed).handle
            configuration.return_keyed_state_backend(replayed, identity, succeeded=True)
            assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0, offset)

    def test_a_subtask_gets_only_its_own_backend(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        handles: list[KeyedStateHandle] = []
        for subtask in range(2):
            backend, identity = self.lease(harness, configuration, subtask=subtask, parallelism=2)
            own = [key for key in KEYS if harness.key_group(key) in backend.key_group_range]
            fill(harness, backend, own)  # type: ignore[arg-type]
            handles.append(harness.snapshot(backend).handle)
            configuration.return_keyed_state_backend(backend, identity, succeeded=True)
        for subtask, handle in enumerate(handles):
            backend, identity = self.lease(harness, configuration, handle, subtask=subtask, parallelism=2)
            own = [key for key in KEYS if harness.key_group(key) in backend.key_group_range]
            assert contents(harness, backend) == filled(own, 0)  # type: ignore[arg-type]
            configuration.return_keyed_state_backend(backend, identity, succeeded=False)

    def test_files_are_private_to_their_user(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        before = os.umask(0o022)
        try:
            backend, identity = self.lease(harness, configuration)
            fill(harness, backend, KEYS)
            handle = harness.snapshot(backend).handle
            configuration.return_keyed_state_backend(backend, identity, succeeded=True)
            restored, _ = self.lease(harness, configuration, handle, local="another")
            assert contents(harness, restored) == filled(KEYS, 0)
            found = list(readable_by_others(Path(harness.directory)))
            configuration.return_keyed_state_backend(restored, identity, succeeded=False)
        finally:
            os.umask(before)
        assert found == []

    def test_state_survives_the_loss_of_the_local_directory(self, harness: BackendHarness) -> None:
        configuration = self.create_state_backend()
        backend, identity = self.lease(harness, configuration)
        fill(harness, backend, KEYS)
        handle = harness.snapshot(backend).handle
        configuration.return_keyed_state_backend(backend, identity, succeeded=True)
        elsewhere, _ = self.lease(harness, configuration, handle, local="another")
        assert contents(harness, elsewhere) == filled(KEYS, 0)
        configuration.return_keyed_state_backend(elsewhere, identity, succeeded=False)
        foreign = evolve(handle, state_id="another-state")
        again, _ = self.lease(harness, configuration, foreign)
        assert contents(harness, again) == filled(KEYS, 0)
        configuration.return_keyed_state_backend(again, identity, succeeded=False)
