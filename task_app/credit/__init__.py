"""Credit: reward vectors of a group in, one advantage per decision out. Pure Python floats, no torch.

types.py       what goes in and comes out
returns.py     returns-to-go and leave-one-out differences
baseline.py    running means of earlier batches, for lone survivors
estimators.py  the registry of advantage estimators
advantages.py  estimator, zero variance, scale and statistics over a batch
"""

from task_app.credit.advantages import compute_advantages
from task_app.credit.baseline import RunningBaseline
from task_app.credit.estimators import Estimator, check_credit, estimator_names, get_estimator, register
from task_app.credit.types import CreditResult, CreditSettings, GroupCredit, GroupRewards

__all__ = [
    "CreditResult",
    "CreditSettings",
    "Estimator",
    "GroupCredit",
    "GroupRewards",
    "RunningBaseline",
    "check_credit",
    "compute_advantages",
    "estimator_names",
    "get_estimator",
    "register",
]
