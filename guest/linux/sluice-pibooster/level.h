/* SPDX-License-Identifier: GPL-2.0-only */
/* Levels of page tables, as the parts of the module number them. */
#ifndef _SLUICE_PIBOOSTER_LEVEL_H
#define _SLUICE_PIBOOSTER_LEVEL_H

enum level {
	LEVEL_PGD,
	LEVEL_USER_PGD, /* the table of a program's own addresses, which Xen's guests have apart */
	LEVEL_PUD,
	LEVEL_PMD,
	LEVEL_PTE,
	LEVELS
};

#endif
