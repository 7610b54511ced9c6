/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How many spare pages a level of the cache keeps, by what it needed lately: the threshold that adapts itself.
 *
 * Time passes in steps of a second. The fewest spare pages that there were during a step are its low-water mark: so many were not needed. The fewest of the last
 * steps, as many as are in the window, are given back, but for a floor. A level that is missing a page which it gave back had too short a window, which
 * doubles; a page that was given back and is not missed until the longest window is over makes the window shorter by a quarter.
 *
 * There is nothing of the kernel's here: the host compiles it and compares it with its own (sluice/src/threshold/adapt.rs), which replays traces.
 *
 * Source: "PiBooster: Performance Accelerations in Page Table Management for Paravirtual VMs", 6.2, which leaves such a rule for later.
 */
#ifndef _SLUICE_PIBOOSTER_ADAPT_H
#define _SLUICE_PIBOOSTER_ADAPT_H

/* Steps of the window: at least, at most, and to begin with. */
#define ADAPT_SHORTEST 2
#define ADAPT_LONGEST 64
#define ADAPT_FIRST 16
/* Spare pages that are never given back. */
#define ADAPT_FLOOR 4

struct adapt {
	unsigned int low; /* fewest spare pages since the last step */
	unsigned int missed; /* pages that were not there since the last step */
	unsigned int window; /* steps that the number of pages is decided by */
	unsigned int steps; /* that have passed, modulo 2^32 */
	unsigned int lows[ADAPT_LONGEST]; /* low-water marks of the last steps, by number of the step */
	unsigned int given[ADAPT_LONGEST]; /* pages that these gave back and nobody has missed yet */
};

/* Nothing is known yet: whatever is there may be needed. */
static inline void adapt_begin(struct adapt *adapt, unsigned int spare)
{
	*adapt = (struct adapt){ .low = spare, .window = ADAPT_FIRST };
}

/* A page was taken, and so many are left. */
static inline void adapt_taken(struct adapt *adapt, unsigned int left)
{
	if (left < adapt->low)
		adapt->low = left;
}

/* A page was asked for and none was free. */
static inline void adapt_missed(struct adapt *adapt)
{
	adapt->low = 0;
	adapt->missed++;
}

static inline unsigned int adapt_less(unsigned int number, unsigned int by)
{
	return number > by ? number - by : 0;
}

/* So many spare pages are gone, and nobody needed them: there would have been fewer all the time. */
static inline void adapt_removed(struct adapt *adapt, unsigned int count)
{
	unsigned int at;

	adapt->low = adapt_less(adapt->low, count);
	for (at = 0; at < ADAPT_LONGEST; at++)
		adapt->lows[at] = adapt_less(adapt->lows[at], count);
}

/* Whether pages were missed that had been given back. What was given back last would have been there first. */
static inline int adapt_regrets(struct adapt *adapt)
{
	unsigned int left = adapt->missed, age;

	for (age = 1; age <= ADAPT_LONGEST && left; age++) {
		unsigned int *given = &adapt->given[(adapt->steps - age) % ADAPT_LONGEST];
		unsigned int count = *given < left ? *given : left;

		*given -= count;
		left -= count;
	}
	return left != adapt->missed;
}

/* A step is over, and so many pages are spare. Returns how many are to be given back, which the caller does. */
static inline unsigned int adapt_step(struct adapt *adapt, unsigned int spare)
{
	unsigned int at = adapt->steps % ADAPT_LONGEST, least = spare, keep, count, age;

	if (adapt_regrets(adapt))
		adapt->window = adapt->window < ADAPT_LONGEST / 2 ? adapt->window * 2 : ADAPT_LONGEST;
	else if (adapt->given[at])
		adapt->window = adapt->window * 3 / 4 > ADAPT_SHORTEST ? adapt->window * 3 / 4 : ADAPT_SHORTEST;
	adapt->lows[at] = adapt->low < spare ? adapt->low : spare;
	for (age = 0; age < adapt->window; age++) {
		unsigned int low = adapt->lows[(adapt->steps - age) % ADAPT_LONGEST];

		least = low < least ? low : least;
	}
	keep = spare - least > ADAPT_FLOOR ? spare - least : ADAPT_FLOOR;
	count = adapt_less(spare, keep);
	adapt->given[at] = count;
	adapt_removed(adapt, count);
	adapt->low = spare - count;
	adapt->missed = 0;
	adapt->steps++;
	return count;
}

#endif
