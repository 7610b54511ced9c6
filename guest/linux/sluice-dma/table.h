/* SPDX-License-Identifier: GPL-2.0-only */
/* Devices that pages are lent to by a table, the older way (table.c). */
#ifndef _SLUICE_DMA_TABLE_H
#define _SLUICE_DMA_TABLE_H

#include <linux/types.h>

struct device;
struct pci_dev;

/* Lends pages of a space of so many references by a table. Whether that could be done. */
bool table_take(struct pci_dev *pdev, u64 space, unsigned long references);
bool table_is_taken(struct device *dev);
/* The device is gone. */
void table_lose(struct pci_dev *pdev);

#endif
