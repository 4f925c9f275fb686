// SPDX-License-Identifier: Apache-2.0
using System;
using System.Collections.Generic;
using Dt;

static class StoreTests
{
    internal static void Add()
    {
        Suite.Add("store: binary values, two ranks", () => Ranks.Run(2, Values));
        Suite.Add("store: the same calls at world size 1", () =>
            Ranks.Alone((job, world) => Values(new Ranks { job = job, world = world, rank = 0, size = 1 })));
    }

    static void Same(byte[] expected, byte[] found, string what)
    {
        Suite.Equal(BitConverter.ToString(expected), BitConverter.ToString(found), what);
    }

    static void Values(Ranks each)
    {
        Job job = each.job;
        byte[] all = new byte[256];
        for (int i = 0; i < 256; ++i) all[i] = (byte)i;
        if (each.rank == 0)
        {
            job.StoreSet("binary", all);
            job.StoreSet("empty", new byte[0]);
            job.StoreSet("\u4f60/\U0001F600", new byte[] { 0, 0xff });
        }
        Same(all, job.StoreGet("binary"), "every byte");
        Same(new byte[0], job.StoreGet("empty"), "nothing");
        Same(new byte[] { 0, 0xff }, job.StoreGet("\u4f60/\U0001F600"), "a key of wide characters");
        job.StoreWait(new string[] { "binary", "empty" });

        job.StoreAdd("sum", each.rank + 5);
        job.StoreBarrier("added");
        Suite.Equal(each.size == 1 ? 5L : 11L, job.StoreAdd("sum", 0), "sum");
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreAdd("binary", 1));

        string own = "own/" + each.rank + "/";
        Suite.Check(job.StoreCompareSet(own + "x", null, new byte[] { 0 }), "absent, so it is set");
        Suite.Check(!job.StoreCompareSet(own + "x", null, new byte[] { 1 }), "there already");
        Suite.Check(!job.StoreCompareSet(own + "x", new byte[] { 5 }, new byte[] { 1 }), "another value");
        Suite.Check(job.StoreCompareSet(own + "x", new byte[] { 0 }, new byte[0]), "the expected one");
        Suite.Check(!job.StoreCompareSet(own + "x", null, new byte[] { 1 }), "an empty value is there, too");

        Dictionary<string, byte[]> several = new Dictionary<string, byte[]>();
        several[own + "y"] = all;
        several[own + "z"] = new byte[0];
        job.StoreMultiSet(several);
        byte[][] got = job.StoreMultiGet(new string[] { own + "z", own + "nothing", own + "y" });
        Suite.Equal(0, got[0].Length, "empty");
        Suite.Check(got[1] == null, "absent");
        Same(all, got[2], "every byte again");
        Suite.Equal(own + "x " + own + "y " + own + "z", string.Join(" ", job.StoreList(own)), "keys in order");
        Suite.Check(job.StoreDelete(own + "y"), "it existed");
        Suite.Check(!job.StoreDelete(own + "y"), "not any more");
        Suite.Equal(0, job.StoreList("none/").Length, "no keys");

        Suite.Throws<DtTimeoutException>(() => job.StoreGet("never", TimeSpan.FromMilliseconds(1)), "never");
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreSet("", new byte[1]));
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreSet("k", null), "null");
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreWait(null), "null");
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreWait(new string[] { null }), "null");
        Suite.Throws<DtInvalidArgumentException>(() => job.StoreMultiSet(null), "null");
    }
}
