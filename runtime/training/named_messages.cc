// SPDX-License-Identifier: Apache-2.0
#include "training/named_messages.h"

#include "base/byte_codec.h"
#include "collective/descriptor.h"

namespace dt::training {
namespace {

Status whole(const ByteReader& in) {
  if (in.complete()) return {};
  return Status(Code::kInternal, "named submission: a message of another rank is damaged");
}

void put_call(ByteWriter& out, const NamedCall& call) {
  out.put(call.kind);
  out.put(call.dtype);
  out.put(call.op);
  out.put(call.root);
  out.put(call.count);
  out.put(call.group_size);
  if (call.group_size == 0) return;
  out.put(call.group_index);
  out.put(call.group);
}

NamedCall get_call(ByteReader& in) {
  NamedCall call;
  call.kind = in.get<backend::Kind>();
  call.dtype = in.get<Dtype>();
  call.op = in.get<ReduceOp>();
  call.root = in.get<int32_t>();
  call.count = in.get<int64_t>();
  call.group_size = in.get<int32_t>();
  if (call.group_size == 0) return call;
  call.group_index = in.get<int32_t>();
  call.group = in.text();
  return call;
}

void put_status(ByteWriter& out, const Status& status) {
  out.put(status.code());
  if (status.ok()) return;
  out.put(status.info().rank);
  out.put(status.info().pid);
  out.put(status.info().host);
  out.put(status.message());
}

Status get_status(ByteReader& in) {
  ErrorInfo info;
  info.code = in.get<Code>();
  if (info.code == Code::kOk) return {};
  info.rank = in.get<int32_t>();
  info.pid = in.get<int64_t>();
  info.host = in.text();
  info.message = in.text();
  return Status(std::move(info));
}

}  // namespace

std::string NamedCall::text() const {
  collective::Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.op = op;
  collective.root = root;
  std::string described = collective::describe(collective::signature_of(collective), count, "");
  if (group_size == 0) return described;
  return described +
         format(", %d of %d in the group of \"%s\"", group_index + 1, group_size, group.c_str());
}

std::string pack(const NamedNews& news) {
  ByteWriter out;
  out.put(news.heard);
  out.put(news.leaves);
  out.put(news.joins);
  out.put(news.asks);
  out.put_all(news.known, [&](uint32_t id) { out.put(id); });
  out.put_all(news.fresh, [&](const NamedNews::Fresh& each) {
    out.put(each.name);
    put_call(out, each.call);
  });
  out.put_all(news.overdue, [&](const std::string& name) { out.put(name); });
  return out.take();
}

Result<NamedNews> unpack_news(const std::string& bytes) {
  ByteReader in(bytes);
  NamedNews news;
  news.heard = in.get<uint32_t>();
  news.leaves = in.get<bool>();
  news.joins = in.get<bool>();
  news.asks = in.get<bool>();
  in.get_all(&news.known, [&] { return in.get<uint32_t>(); });
  in.get_all(&news.fresh, [&] {
    NamedNews::Fresh fresh;
    fresh.name = in.text();
    fresh.call = get_call(in);
    return fresh;
  });
  in.get_all(&news.overdue, [&] { return in.text(); });
  DT_TRY(whole(in));
  return news;
}

std::string pack(const NamedAnswer& answer) {
  ByteWriter out;
  out.put(answer.may_end);
  out.put(answer.joined);
  put_status(out, answer.broken);
  out.put(answer.report.has_value());
  if (answer.report) out.put(*answer.report);
  out.put_all(answer.operations, [&](const NamedAnswer::Operation& each) {
    out.put(each.id);
    out.put(each.known);
    if (each.known) return;
    out.put(each.name);
    put_call(out, each.call);
  });
  out.put_all(answer.forgotten, [&](uint32_t id) { out.put(id); });
  out.put_all(answer.failures, [&](const NamedAnswer::Failure& each) {
    out.put(each.name);
    put_status(out, each.status);
  });
  return out.take();
}

Result<NamedAnswer> unpack_answer(const std::string& bytes) {
  ByteReader in(bytes);
  NamedAnswer answer;
  answer.may_end = in.get<bool>();
  answer.joined = in.get<int32_t>();
  answer.broken = get_status(in);
  if (in.get<bool>()) answer.report = in.text();
  in.get_all(&answer.operations, [&] {
    NamedAnswer::Operation operation;
    operation.id = in.get<uint32_t>();
    operation.known = in.get<bool>();
    if (operation.known) return operation;
    operation.name = in.text();
    operation.call = get_call(in);
    return operation;
  });
  in.get_all(&answer.forgotten, [&] { return in.get<uint32_t>(); });
  in.get_all(&answer.failures, [&] {
    NamedAnswer::Failure failure;
    failure.name = in.text();
    failure.status = get_status(in);
    return failure;
  });
  DT_TRY(whole(in));
  return answer;
}

}  // namespace dt::training
