// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace dt {

/// First in, first out, in memory that stays: a std::deque allocates and frees a piece of its own
/// every few dozen elements, also where it never holds more than one.
template <class T>
class Fifo {
 public:
  using Iterator = typename std::vector<T>::iterator;
  using ConstIterator = typename std::vector<T>::const_iterator;

  bool empty() const { return first_ == items_.size(); }
  size_t size() const { return items_.size() - first_; }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  T& operator[](size_t index) { return items_[first_ + index]; }
  Iterator begin() { return items_.begin() + static_cast<ptrdiff_t>(first_); }
  Iterator end() { return items_.end(); }
  ConstIterator begin() const { return items_.begin() + static_cast<ptrdiff_t>(first_); }
  ConstIterator end() const { return items_.end(); }

  void push_back(T item) {
    // Moves what is there at most once for as many as have left.
    if (items_.size() == items_.capacity() && first_ >= size()) {
      items_.erase(items_.begin(), begin());
      first_ = 0;
    }
    items_.push_back(std::move(item));
  }
  void pop_front() {
    items_[first_++] = T();
    if (empty()) clear();
  }
  /// Cheap near the front.
  void erase(Iterator item) {
    std::move_backward(begin(), item, item + 1);
    pop_front();
  }
  void clear() {
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;  ///< those before it have left
};

}  // namespace dt
