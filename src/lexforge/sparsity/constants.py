"""The numbers by which wanted numbers of terms are reached, each with what it was chosen for.

`docs/notebook/wanted-numbers.md` has the runs behind those of the controller.
"""

from __future__ import annotations

import math

# The controller counts the terms of so many texts of each kind, which tells the mean to some 5 %, after each
# such share of training.
COUNTED_TEXTS, BETWEEN = 128, 0.025
# What runs with weights set by hand showed: n is about a weight to the power of -POWER, and a model that
# trains with the weight ANCHOR keeps the number of terms that it had.
POWER, ANCHOR = 0.18, 1.2e-4
# The base follows the weight with this speed, per whole training, from this share of training on: a model
# answers late to another weight, and hardly at all while the learning rate warms up.
FOLLOW, AFTER = 3.0, 0.1
# The largest distance of n from the wanted number, as a logarithm, that one count answers: a weight goes up
# or down by a factor of exp(1.5 / .18) = 4,200 at most.
REACH = 1.5
# How far a weight may go from ANCHOR, as a logarithm: to .12, or to .6 where queries have a wanted number. A
# larger weight harms the ranking more than the trimming of the documents at the end does. Nothing trims
# queries, so their weight must reach further.
BOUND, BOUND_WITH_QUERIES = math.log(1e3), math.log(5e3)
# Texts of each kind by whose mean the documents are trimmed and the finished model is counted, and texts that
# are enough without those of the training rows: the mean of so many is off by about 1 %, and by 2 to 3 %.
SAMPLE, FEW = 3000, 500
# How far, as a share, queries may end from their wanted number without a warning.
QUERY_TOLERANCE = 0.05
# Entries of the vectors that are counted at once, active or not: .1 GB where every term is active.
BLOCK_ENTRIES = 2**22
# How far below 0 logits are looked at where those above 0 are too few: first to .25, which is deep enough for
# a model that was trained for the number, then four times as far each time, up to 64, where a larger number
# than the model can have is given up.
FIRST_DEPTH, LARGEST_DEPTH = 0.25, 64.0
# Of the scale of the logits after a level (`scale_after`): the exponent of the level, chosen on queries of
# train, and the limit. No larger scale was measured, and a head that would ask for one was not trained for
# SPLADE.
SCALE_EXPONENT, LARGEST_SCALE = 2.5, 64
