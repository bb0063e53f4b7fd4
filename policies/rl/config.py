"""Options of the reinforcement learners. Imports without torch.

Every default names its source. [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from robots.config import config


@config
class MlpSizes:
    """A plain network: layers of Linear, LayerNorm if wanted, activation."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of every hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh in HIL-SERL [C], relu in RLPD [C]."""
    layer_norm: bool = True
    """LayerNorm before the activation; without it a critic overestimates what the demonstrations do not cover
    (RLPD, arXiv 2302.02948)."""


@config
class GripperConfig:
    """A hand whose commands are learned by a critic of their own (HIL-SERL, arXiv 2410.21845)."""

    network: MlpSizes = MlpSizes()
    """Observation to one value per command: 0 close, 1 hold, 2 open."""
    toggle_penalty: float = -0.02
    """Added to the reward of this critic, and of no other, where the hand is told to turn round [C: USB task]."""
    learning_rate: float = 3e-4


@config
class EncoderConfig:
    """From pictures to features (SERL, arXiv 2401.16013); used where the data hold pictures."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Of the convolutions, each of which halves the picture; of SERL's small encoder [C]."""
    embeddings: int = 8
    """Learned weightings of places per channel [C]."""
    picture_width: int = 256
    """Features per camera [C]."""
    vector_width: int = 64
    """Features of the observation vector [C]."""
    shift: int = 4
    """Largest random shift of the pictures in training [pixel] [C]; 0 shifts nothing."""


@config
class GuidanceConfig:
    """Holds the actor near what people did, ever more loosely (`policies.rl.guided_sac`); not in HIL-SERL."""

    first: float = 50.0
    """Weight of the squared distance at the first update."""
    last: float = 5.0
    """And from update `updates` on; geometric in between."""
    updates: int = 20_000
    """Updates of the actor until then."""
    margin: float = 0.1
    """By which the hand's critic is to value a person's command above the others (DQfD, arXiv 1704.03732); 0: none."""


@config
class SacConfig:
    """Soft actor-critic (Haarnoja et al. 2018) with the options of its family; the defaults are HIL-SERL's [C]."""

    kind: Literal["sac"] = "sac"
    critic: MlpSizes = MlpSizes()
    actor: MlpSizes = MlpSizes()
    critics: int = 2
    """Members of the ensemble. 10 in RLPD, SERL and WSRL [C]."""
    subset: int | None = None
    """Members, drawn anew for every minibatch, over which the target takes the minimum (REDQ); None takes all.
    2 in RLPD, 1 on pixels [C]."""
    actor_value: Literal["mean", "min"] = "mean"
    """What the actor climbs: `mean` of all members (RLPD, HIL-SERL [C]), or their `min` (SAC [P])."""
    backup_entropy: bool = False
    """Whether the target holds the entropy of the next action. True in SAC [P] and RLPD's locomotion [C]."""
    learning_rate: float = 3e-4
    """Of the critics (Adam)."""
    actor_learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    tau: float = 0.005
    """Share of the critics that every critic update moves into their targets (Polyak)."""
    init_temperature: float = 0.01
    """1e-2 in HIL-SERL, 1 in RLPD [C]."""
    target_entropy: float | None = None
    """[nat]; None takes minus half the number of continuous entries of an action (RLPD, HIL-SERL [C])."""
    log_std_min: float = -11.5
    """exp(-11.5) = 1e-5: HIL-SERL bounds the deviation by 1e-5 and 5 [C]; RLPD its logarithm by -20 and 2 [C]."""
    log_std_max: float = 1.6
    fixed_std: float | None = None
    """Deviation of a Gaussian before tanh that is not learned; None learns one per state."""
    gsde: int = 0
    """Steps for which exploration keeps its noise (gSDE, arXiv 2005.05719); 0 is not gSDE: a draw per step."""
    gsde_log_std_init: float = -2.0
    """Of gSDE's deviations per feature [C: -2 and -3]."""
    gsde_learn_features: bool = False
    """Whether the variance of gSDE's exploration shapes the features too; False in PPO and A2C, True in SAC [C]."""
    gsde_expln: bool = False
    """Deviations of gSDE grow like a logarithm above 1 rather than like an exponential [P]."""
    final_scale: float = 1.0
    """Factor on the initial weights of the actor's last layer; 1e-2 in WSRL [C]."""
    actor_ema: float | None = None
    """Bound on the share of itself that a running mean of the weights of actor and hand's critic keeps per update; the
    policy acts with that mean, the learner learns with the newest. None acts with the newest, as HIL-SERL."""
    gripper: GripperConfig | None = None
    """Makes the last entry of an action a command of the hand: -1 close, 0 hold, 1 open; None leaves it continuous."""
    guidance: GuidanceConfig | None = None
    """Holds the actor near demonstrations and corrections; None does not, as HIL-SERL."""
    encoder: EncoderConfig = EncoderConfig()
    """Of pictures; without any it has no say."""


@config
class Sizes:
    """What the data give a learner."""

    observation: int
    """O, entries of the observation vector."""
    action: int
    """A, entries of an action, the hand's among them; for chunks entries of all actions of a chunk."""
    differences: tuple[tuple[int, int, int, float], ...] = ()
    """(begin, other, count, scale): entries `begin..begin+count` minus `other..other+count`, or the entries alone where
    `other` is -1, divided by `scale`, are shown to the networks beside the vector: where the hand is, seen from the
    cube, must not have to be learned."""
    close_ups: tuple[tuple[int, int, int, float], ...] = ()
    """(begin, other, count, scale): likewise, but through tanh: half a millimetre beside a peg's hole is shown large,
    and what is far stays bounded."""
    pictures: tuple[tuple[str, int, int], ...] = ()
    """(name, height, width) of every camera."""


@config
class IqlConfig:
    """Learning from the data's own actions; the defaults are IQL's on sparse mazes [C] (arXiv 2110.06169)."""

    kind: Literal["iql"] = "iql"
    value: Literal["expectile", "chi2", "tv", "gumbel"] = "expectile"
    """The loss of V: IQL's, two of f-DVL (arXiv 2302.08560) and XQL's; see `policies.rl.value_losses`."""
    level: float = 0.9
    """w of the expectile, lambda of chi2 and TV. IQL .9 in mazes, .7 elsewhere [C]."""
    temperature: float = 1.0
    """Of chi2, TV and Gumbel: the advantage that counts as 1 [reward]. The expectile has none."""
    released_chi2: bool = False
    """Takes chi2 as f-DVL's code has it and not the conjugate of its paper."""
    gumbel_clip: float = 7.0
    """Bound on XQL's exponent [C]."""
    inverse_temperature: float = 10.0
    """b of the weight exp(b (Q - V)) of an action. 10 in mazes, 3 locomotion, .5 kitchen [C]; 0 clones behaviour."""
    weight_clip: float = 100.0
    """Bound on that weight [C]."""
    critics: int = 2
    """Members of the ensemble; V and the actor look at their targets' minimum [C]."""
    critic: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    value_network: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    actor: MlpSizes = MlpSizes(activation="relu", layer_norm=False)
    dropout: float = 0.0
    """Share of the actor's hidden units that an update leaves out; .1 on small data (kitchen, Adroit) [C]."""
    huber: float | None = None
    """Error of Q beyond which its loss grows linearly [reward]; 20 in f-DVL [C], None squares all."""
    learning_rate: float = 3e-4
    """Of Q and V (Adam) [C]."""
    actor_learning_rate: float = 3e-4
    actor_decay_updates: int | None = None
    """Updates over which the actor's rate falls to 0 along half a cosine, 1,000,000 in the code; None keeps it."""
    tau: float = 0.005
    """Share of the critics that every update moves into their targets (Polyak) [C]."""
    log_std_min: float = -5.0
    """Of the actor's deviations, which do not depend on the state [C]."""
    log_std_max: float = 2.0


@config
class EdpConfig:
    """A diffusion policy that climbs Q through a one-step guess of the clean action (EDP, arXiv 2305.20081)."""

    kind: Literal["edp"] = "edp"
    objective: Literal["td3", "crr", "iql"] = "td3"
    """How Q enters: by its gradient (td3), or as a weight on the data's actions (crr, iql) [P]."""
    q_weight: float = 2.0
    """lambda of td3's term, which is divided by the mean of |Q|; 0 clones behaviour [C]."""
    level: float = 0.7
    """Expectile of V (iql) [C]."""
    inverse_temperature: float = 3.0
    """b of the weight exp(b (Q - V)) (crr, iql) [C]."""
    weight_clip: float = 100.0
    crr_samples: int = 4
    """Actions of the policy whose mean Q is crr's V; our choice."""
    schedule: Literal["vp", "linear", "cosine"] = "vp"
    """Of the noise: vp as in Diffusion-QL and EDP [C], linear in DDPM's betas, cosine as in `policies.generative`."""
    levels: int = 100
    """K [C]; 1000 with few `steps` is the paper's other choice."""
    steps: int | None = None
    """Of the sampler: None walks all K levels by DDPM [C]; fewer walk by DDIM, the first-order DPM-solver."""
    candidates: int = 50
    """Actions drawn per observation when acting, of which Q chooses one [C]; 1 does not choose."""
    choose: Literal["softmax", "argmax"] = "softmax"
    """By odds exp(Q), or the best [C]."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Of the actor, with Mish [C]."""
    embedding: int = 16
    """Entries that tell the actor its noise level [C]."""
    critics: int = 2
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    value_network: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    """Of V (iql)."""
    learning_rate: float = 3e-4
    """Of all networks (Adam) [C]."""
    tau: float = 0.005
    target_policy_every: int = 5
    """Updates between two moves of the target policy towards the policy [C]."""
    target_policy_after: int = 1000
    """Updates before which the target policy is the policy itself [C]."""


@config
class RlifConfig:
    """Reward from interventions alone (RLIF, arXiv 2311.12996)."""

    reward: float = -1.0
    """Of the step just before an intervention begins; every other has 0 [P, C]."""
    keep_expert_steps: bool = True
    """Whether the person's steps are learned from [P]; False drops all but the last of every intervention [C]."""


@config
class HgDaggerConfig:
    """Imitation of a person's corrections (HG-DAgger, arXiv 1810.02890)."""

    kind: Literal["hg_dagger"] = "hg_dagger"
    network: MlpSizes = MlpSizes(activation="relu")
    hand: bool = False
    """Whether the last entry of an action is a command: -1 close, 0 hold, 1 open."""
    learning_rate: float = 3e-4


@config
class CalQlConfig:
    """Cal-QL (arXiv 2303.05479), and CQL (arXiv 2006.04779), as WSRL pretrains with it [C]."""

    kind: Literal["calql"] = "calql"
    sac: SacConfig = SacConfig(
        critic=MlpSizes(activation="relu"),
        actor=MlpSizes(activation="relu"),
        critics=10,
        subset=2,
        actor_learning_rate=1e-4,
        temperature_learning_rate=1e-4,
        init_temperature=1.0,
        target_entropy=0.0,
        final_scale=1e-2,
    )
    """The core: the same as online in WSRL [C]."""
    weight: float = 5.0
    """Of conservatism; 1 on Adroit [C]."""
    calibrated: bool = True
    """False is CQL."""
    actions: int = 10
    """Drawn at random, from the policy at s, and from it at s': three times as many in all [C]."""
    target_actions: int = 10
    """Next actions whose largest value is the target [C]; 1 is plain."""
    gap: float | None = None
    """Of the Lagrange form, which scales `weight` so that conservatism's term comes to this value; 0.8 in Cal-QL's
    AntMaze [C]. None leaves `weight` alone."""


@config
class LearnerConfig:
    """The learner's process (`policies.rl.learner`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted: beyond this machine, go through a tunnel or a TLS proxy."""
    port: int = 8010
    """TCP port; 0 takes a free one."""
    actors: int = 4
    """Connections at a time."""
    publish_every: int = 50
    """Updates between publications of the actor's parameters; 50 in HIL-SERL, 30 in SERL [C]."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints [s]; the updates since the last one are what a crash costs."""
    metrics_every: int = 100
    """Updates per line of `metrics.jsonl`."""
    log_bytes: int = 32_000_000
    """Size from which on the log of what came in begins a new file."""


@config
class BehaviourConfig:
    """A generative model of the chunks in the data, trained by imitation alone."""

    kind: Literal["flow", "diffusion"] = "flow"
    """`flow`: velocity, Euler steps (Q-chunking [C]). `diffusion`: noise, variance-preserving schedule (EXPO [P])."""
    network: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu", layer_norm=False)
    """Q-chunking [C], which has GELU."""
    steps: int = 10
    """From noise to chunk: Euler steps [C], or levels K of the schedule (EXPO [P])."""
    beta_min: float = 0.1
    """Of the schedule, per unit of time; with .1 and 20 the last level keeps 4.3e-5 of the signal's variance, where
    betas 1e-4 to .02 at K = 10 would keep .904."""
    beta_max: float = 20.0
    eta: float = 1.0
    """Noise of the diffusion's sampler: 1 is DDPM, 0 DDIM, a function of where it started."""
    learning_rate: float = 3e-4


@config
class ExpoConfig:
    """EXPO (arXiv 2507.07986): an imitated base policy, a learned edit of it, and the best of both by value."""

    kind: Literal["expo"] = "expo"
    sac: SacConfig = SacConfig(
        critic=MlpSizes(activation="relu"),
        actor=MlpSizes(activation="relu"),
        critics=10,
        subset=2,
        init_temperature=1.0,
    )
    """Critics, edit (its `actor`) and temperature: RLPD's [C], ten critics and the minimum of two [P]. Its
    `target_entropy` is that of the edit in units of actions; None takes A (log(2 beta) - 1/2)."""
    base: BehaviourConfig = BehaviourConfig(
        kind="diffusion", network=MlpSizes(hidden=(256, 256, 256), activation="relu", layer_norm=False)
    )
    beta: float = 0.3
    """Bound on every entry of an edit [action units]; .05 to .7 by task [P]."""
    samples: int = 8
    """Base samples to choose from, and as many edited ones [P]."""
    edits: bool = True
    """Whether there are edits at all; without, the best base sample acts."""
    backup: Literal["max", "policy"] = "max"
    """Next action of the target: the best of all samples, as in acting [P], or one edited sample."""


@config
class QChunkingConfig:
    """Q-chunking (arXiv 2507.07969): values of whole chunks, and chunks like those of the data."""

    kind: Literal["q_chunking"] = "q_chunking"
    horizon: int = 5
    """h, actions per chunk, executed without looking [C]; 1 is the same method without chunks."""
    actor: Literal["best_of", "one_step"] = "best_of"
    """`best_of`: the best of `samples` chunks of the behaviour (QC); `one_step`: a network that gives the behaviour's
    chunk at once and climbs the value (QC-FQL)."""
    samples: int = 32
    """[C]"""
    distillation: float = 100.0
    """Weight of the one-step network's distance from the behaviour [C; by task 1e2 to 3e4]."""
    critic: MlpSizes = MlpSizes(hidden=(512, 512, 512, 512), activation="relu")
    """[C], which has GELU."""
    behaviour: BehaviourConfig = BehaviourConfig()
    critics: int = 2
    value: Literal["mean", "min"] = "mean"
    """Of the critics, in the target and for `best_of` [C]."""
    learning_rate: float = 3e-4
    tau: float = 0.005
