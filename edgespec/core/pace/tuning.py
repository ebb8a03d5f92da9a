"""Every tuned constant of the pace; `tests/test_controller.py` checks their effect."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Times are in token times: seconds of one token of plain decoding."""

    # What is remembered
    fade: float = 0.95  # weight of earlier rounds in a gain, with each new one
    prior_rounds: float = 6.0  # rounds that the expectation of an untried draft is worth
    leap: float = 1.3  # factor over its expected seconds that a round counts for at most: machines pause

    # What the draft model may lose
    share: float = 0.015  # of the tokens emitted
    start: float = 3.0  # token times to begin with
    credit: float = 8.0  # token times of past gains that may be lost again

    # Where a try is expensive, the draft guesses silently before it is tried: one unverified token
    dear: float = 1.0  # token times that the cheapest try may lose
    silent_share: float = 0.013  # of the emitted tokens, that this may cost
    silent_start: float = 0.5  # token times that it may cost at first
    longest_idle: int = 32  # rounds in which a draft is not asked that can neither pay nor be tried yet
    silent_guesses: int = 6  # for which old tokens are worth reading

    # What free guesses may lose: their worth shows without trying
    free_share: float = 0.005
    free_start: float = 1.5
    sure: float = 0.96  # probability from which on a guess needs no budget: else a slow moment shuts it out
    trust_fade: float = 0.95  # of earlier steps that took free guesses, with each that does
    trust_leap: float = 4.0  # factor by which a step may disappoint at most: machines pause
    trust_rest: float = 0.985  # of what earlier steps count, with each step that takes no free guesses
    trust_prior: float = 4.0  # steps that trusting the expectation is worth

    # How far to look ahead
    ahead: int = 16  # guesses, where the next alone would not pay: costs are not monotonic
    horizon: int = 256  # tokens over which reading the prompt with the draft has to pay, at most
    trial: int = 32  # fewest tokens of prompt worth reading with a draft

    # When nothing is guessed
    light_s: float = 0.002  # seconds of a token below which looking for guesses takes a good part of it
    felt_s: float = 0.009  # and below which it shows
    look_s: float = 0.0004  # seconds that looking takes, between two evaluations
    look_share: float = 0.015  # of the time that it should take
    look: int = 2  # rounds without a guess after which a light target is left alone
    rest: int = 30  # rounds it is left alone for, then twice as many, and again
    longest_rest: int = 224
    fresh: int = 8  # tokens after which plain decoding is timed again, at the soonest
    refresh: int = 256  # and at the latest


TUNING = Tuning()
