"""Makes a training loop an island of a Skerry swarm.

    import skerry
    with skerry.join(model, optimizer=optimizer) as island:
        for phase in island.phases():                     # waits for work; the weights are loaded in place
            for batch in phase.batches(collate):          # exactly the samples of the phase, each once
                loss = step(batch)
                phase.step(loss=loss, samples=len(batch)) # reports progress
            # leaving the loop hands the weights over

A worker (`workerd --allow-trainers`) starts the script.  A script that a person starts trains alone, for
debugging: give join(..., alone=skerry.Alone(samples, steps=100)).  docs/trainers.md describes a job's course."""
from __future__ import annotations

from ._island import Alone, Drawing, Evaluation, Island, Phase, Sample, join, read_texts
from ._lib import Error

__all__ = ["Alone", "Drawing", "Error", "Evaluation", "Island", "Phase", "Sample", "join", "read_texts"]
__version__ = "0.1.0"
