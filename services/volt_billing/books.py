"""The accounts. A transfer that may not be is a defect of billing, and stops it."""

from volt.contracts.ledger import CREDIT, EXTERNAL, LedgerEvent
from volt_billing.states import State

MAY_OWE = frozenset({CREDIT, EXTERNAL})
"""Where money comes from: every other account holds what it was given, never less than nothing."""


def post(state: State, event: LedgerEvent, purpose: str) -> None:
    """Moves what the event says. `purpose` is a job or an account, within which no id is used twice.

    Raises AssertionError if an amount is not positive, an id was used, or an account would owe.
    """
    used = state.transfer_ids.setdefault(purpose, set())
    balances = state.balances_microusd
    for transfer in event.transfers:
        assert transfer.amount_microusd > 0, f"{transfer.id} moves {transfer.amount_microusd}"
        assert transfer.id not in used, f"{transfer.id} was made before"
        used.add(transfer.id)
        balances[transfer.debit] = balances.get(transfer.debit, 0) - transfer.amount_microusd
        balances[transfer.credit] = balances.get(transfer.credit, 0) + transfer.amount_microusd
        owes = balances[transfer.debit] < 0 and transfer.debit not in MAY_OWE
        assert not owes, f"{transfer.id} leaves {transfer.debit} at {balances[transfer.debit]}"
