"""Published friction of the joints, used for all robots in this package.

The FCI compensates the friction of the motors (libfranka's documentation, external controllers),
so what an arm feels is what is left of it. These figures were identified at a Panda, from the joint
torques that its sensors measured during motions. For the Research 3, which has drives and sensors
of the same design, nothing of the kind is known to be published; its figures are assumed to be the
same.
"""

from __future__ import annotations

import numpy as np

from robots.franka.robot import JointFriction

PANDA_FRICTION = JointFriction(
    amplitude=np.array([0.54615, 0.87224, 0.64068, 1.2794, 0.83904, 0.30301, 0.56489]),
    steepness=np.array([5.1181, 9.0657, 10.136, 5.5903, 8.3469, 17.133, 10.336]),
    offset=np.array([0.039533, 0.025882, -0.04607, 0.036194, 0.026226, -0.021047, 0.0035526]),
    source="Gaz, Cognetti, Oliva, Robuffo Giordano, De Luca: Dynamic Identification of the Franka "
    "Emika Panda Robot With Retrieval of Feasible Parameters Using Penalty-Based Optimization "
    "(RA-L 2019), friction model of the supplementary material, as in the authors' "
    "FrankaEmikaPandaDynModel, cpp/panda_dyn_model_example/include/franka_model.h",
)
"""Joint friction of the Panda."""
