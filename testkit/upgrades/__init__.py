"""The laws of an upgrade as a pytest class, for users' own serializers and for ours."""

from testkit.upgrades.upgrade_contract import UpgradeContract, assert_valid, check_upgrade

__all__ = ["UpgradeContract", "assert_valid", "check_upgrade"]
