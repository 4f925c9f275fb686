// SPDX-License-Identifier: Apache-2.0
/// Which sanitizers check this program. A case that only computes more of the same takes fewer
/// rounds under ThreadSanitizer, which looks at who touches what, and makes it ten times as slow.
#pragma once

namespace dt::test {

#if defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#endif

}  // namespace dt::test
