/* SPDX-License-Identifier: GPL-2.0-only */
/* What programs look for in sysfs of an input device: input.c. */
#ifndef _SLUICE_DEVFILE_INPUT_H
#define _SLUICE_DEVFILE_INPUT_H

#include "devfile_face.h"

/*
 * Shows a node as an input device's. Its number is the one that its name says,
 * or the next that is free here.
 */
extern const struct devfile_face_kind devfile_input_face;

#endif
