/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DT_VERSION_H
#define DT_VERSION_H

/** Release of this header; dt_version() tells the library's. */
#define DT_VERSION "0.1.0"
#define DT_VERSION_MAJOR 0
#define DT_VERSION_MINOR 1
#define DT_VERSION_PATCH 0

/** Number in the soname. ABI 0 promises nothing between releases. */
#define DT_ABI_VERSION 0

#endif /* DT_VERSION_H */
