from statebackend.local.environment import LocalStreamEnvironment as LocalStreamEnvironment
from statebackend.local.job import LocalJob as LocalJob
