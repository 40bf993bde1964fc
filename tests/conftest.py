"""For all tests."""

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the example.
settings.register_profile("kvorum", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvorum")
