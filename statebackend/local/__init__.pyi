from statebackend.local.environment import LocalStreamEnvironment as LocalStreamEnvironment
from statebackend.local.run import LocalJob as LocalJob
