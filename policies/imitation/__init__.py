"""Pretrains policies from demonstrations.

- `config`: options of pretraining; imports no torch.
- `field_dropout`: hides observation fields in some of the training windows.
- `auxiliary_loss`: what is learned beside the actions.
- `end_prediction`: predicts beside the actions how fields change until the episode's end.
- `field_estimation`: trains a policy's estimates of fields that it does not observe.
- `initial_weights`: weights of a saved policy as the start of a training.
- `objective`: training setup and loss for the training loop.
- `open_loop`: errors of a policy's actions against recorded ones.
- `pretrain`: the stage's function.
- `validation`: the loss on held-out windows.
"""
