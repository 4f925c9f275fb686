// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dt {

/// Values one behind the other, for processes of one byte order.
class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  template <class T, class F>
  void put_all(const std::vector<T>& all, F&& put_one) {
    put(static_cast<uint32_t>(all.size()));
    for (const T& each : all) put_one(each);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// The reverse, of untrusted bytes, which are borrowed. What is not there reads as zero.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value{};
    if (!has(sizeof value)) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto size = get<uint32_t>();
    if (!has(size)) return {};
    at_ += size;
    return std::string(bytes_.substr(at_ - size, size));
  }
  template <class T, class F>
  void get_all(std::vector<T>* all, F&& get_one) {
    for (auto left = get<uint32_t>(); left > 0 && good_; --left) all->push_back(get_one());
  }
  /// Everything was there, and nothing is left.
  bool complete() const { return good_ && at_ == bytes_.size(); }

 private:
  bool has(size_t size) { return good_ = good_ && size <= bytes_.size() - at_; }

  const std::string_view bytes_;
  size_t at_ = 0;
  bool good_ = true;
};

}  // namespace dt
