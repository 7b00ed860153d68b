"""A job whose model gets worse is rolled back automatically, by evaluations of real workers."""
from common import wait_until
from swarm import swarm  # noqa: F401  (fixture)


def test_what_diverges_is_undone(swarm):
    swarm.worker("a")
    swarm.worker("b")
    # Outer steps of ten times what was learned, with momentum: the weights run away.
    job = swarm.submit(rounds=40, steps=8, replicas=2, lr=10, momentum=0.99, ema=0.1, eval_every=1)
    wait_until(lambda: "is rolled back to version" in swarm.log("coordinatord"), 90, "a version to be undone")
    told = next(line for line in swarm.log("coordinatord").splitlines() if "is rolled back to version" in line)
    assert f"job {job} is rolled back to version" in told and "by eval.guard: held-out loss" in told, told
    assert "another worker is asked" in swarm.log("coordinatord")
