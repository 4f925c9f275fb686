// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;

namespace Dt
{
    // The job's store: keys of 1 to 1024 bytes of UTF-8, values of up to 16 MiB. A negative time
    // limit is rendezvous.timeout_ms.
    public sealed partial class Job
    {
        /// <summary>Sets a key, replacing its value.</summary>
        public void StoreSet(string key, byte[] value, TimeSpan? timeout = null)
        {
            CheckValue("StoreSet", value);
            Raw.Native.store_set(this, key, value, value.LongLength, Limit.InMs(timeout));
        }

        /// <summary>Waits until the key exists and returns its value.</summary>
        public byte[] StoreGet(string key, TimeSpan? timeout = null) =>
            Raw.Native.store_get(this, key, Limit.InMs(timeout));

        /// <summary>Adds to a number kept as decimal text, an absent key counting as 0, and returns
        /// the sum.</summary>
        public long StoreAdd(string key, long delta, TimeSpan? timeout = null) =>
            Raw.Native.store_add(this, key, delta, Limit.InMs(timeout));

        /// <summary>Waits until all keys exist.</summary>
        public void StoreWait(IEnumerable<string> keys, TimeSpan? timeout = null)
        {
            byte[] packed = PackKeys("StoreWait", keys);
            Raw.Native.store_wait(this, packed, packed.LongLength, Limit.InMs(timeout));
        }

        /// <summary>Sets a key only if its value is the expected one; null: if it is absent. Says
        /// whether it did.</summary>
        public bool StoreCompareSet(string key, byte[] expected, byte[] desired, TimeSpan? timeout = null)
        {
            CheckValue("StoreCompareSet", desired);
            Packer packer = new Packer();
            packer.Add(expected);
            packer.Add(desired);
            byte[] packed = packer.Take();
            bool swapped = Raw.Native.store_compare_set(this, key, packed,
                packed.LongLength, Limit.InMs(timeout));
            return swapped;
        }

        /// <summary>Removes a key; says whether it existed.</summary>
        public bool StoreDelete(string key, TimeSpan? timeout = null) =>
            Raw.Native.store_delete(this, key, Limit.InMs(timeout));

        /// <summary>Keys that begin with the prefix, in byte order.</summary>
        public string[] StoreList(string prefix, TimeSpan? timeout = null)
        {
            byte[] packed = Raw.Native.store_list(this, prefix, Limit.InMs(timeout));
            string all = System.Text.Encoding.UTF8.GetString(packed);
            return all.Split(new char[] { '\0' }, StringSplitOptions.RemoveEmptyEntries);
        }

        /// <summary>Sets several keys at once: others see all of them or none.</summary>
        public void StoreMultiSet(IEnumerable<KeyValuePair<string, byte[]>> items,
            TimeSpan? timeout = null)
        {
            if (items == null) throw DtException.InvalidArgument("StoreMultiSet: items is null; give keys and values");
            Packer packer = new Packer();
            foreach (KeyValuePair<string, byte[]> item in items)
            {
                CheckValue("StoreMultiSet", item.Value);
                packer.Add(item.Key);
                packer.Add(item.Value);
            }
            byte[] packed = packer.Take();
            Raw.Native.store_multi_set(this, packed, packed.LongLength, Limit.InMs(timeout));
        }

        /// <summary>Values of several keys in one round trip, null for absent ones.</summary>
        public byte[][] StoreMultiGet(IEnumerable<string> keys, TimeSpan? timeout = null)
        {
            byte[] packed = PackKeys("StoreMultiGet", keys);
            Unpacker values = new Unpacker(
                Raw.Native.store_multi_get(this, packed, packed.LongLength, Limit.InMs(timeout)));
            List<byte[]> all = new List<byte[]>();
            while (values.More) all.Add(values.Item());
            return all.ToArray();
        }

        /// <summary>Returns when so many callers have reached the barrier of this name; 0: as many
        /// as ranks.</summary>
        public void StoreBarrier(string name, int count = 0, TimeSpan? timeout = null) =>
            Raw.Native.store_barrier(this, name, count, Limit.InMs(timeout));

        static void CheckValue(string operation, byte[] value)
        {
            if (value == null)
            {
                throw DtException.InvalidArgument(operation + ": a value is null; give bytes");
            }
        }

        static byte[] PackKeys(string operation, IEnumerable<string> keys)
        {
            if (keys == null)
            {
                throw DtException.InvalidArgument(operation + ": keys is null; give strings");
            }
            Packer packer = new Packer();
            foreach (string key in keys) packer.Add(key);
            return packer.Take();
        }
    }

    /// <summary>A store served for a job whose ranks are threads or children of this process. They
    /// get job.master_addr = 127.0.0.1 (or store.bind), job.master_port = the port,
    /// job.store_served = true. After Dispose, ranks still joined hear of a lost store.</summary>
    public sealed class StoreServer : DtObject
    {
        /// <summary>Serves with job.id, job.world_size, store.bind and job.master_port (0: the
        /// kernel chooses) of the config; null: what stands around the process.</summary>
        public StoreServer(Config config = null)
            : base(new Handle(Loader.Ready(Raw.Native.store_serve, config), Raw.NativePINVOKE.store_server_destroy)) { }

        /// <summary>The port of the store.</summary>
        public int Port => Raw.Native.store_server_port(this);
    }
}
