// SPDX-License-Identifier: Apache-2.0
// netstandard.exe IN OUT: an assembly that Mono's compiler made against Mono's own class library refers to .NET
// Standard 2.1 afterwards, so that .NET Core 3.0 and later, and whatever else has that standard, load it.
using System;
using System.Linq;
using Mono.Cecil;

static class NetStandard
{
    static void Main(string[] args)
    {
        using (ModuleDefinition module = ModuleDefinition.ReadModule(args[0]))
        {
            AssemblyNameReference[] mono = module.AssemblyReferences.ToArray();
            AssemblyNameReference standard = new AssemblyNameReference("netstandard", new Version(2, 1, 0, 0))
            {
                PublicKeyToken = new byte[] { 0xcc, 0x7b, 0x13, 0xff, 0xcd, 0x2d, 0xdd, 0x51 }
            };
            module.AssemblyReferences.Add(standard);
            foreach (TypeReference type in module.GetTypeReferences())
            {
                if (mono.Contains(type.Scope)) type.Scope = standard;
            }
            foreach (AssemblyNameReference reference in mono) module.AssemblyReferences.Remove(reference);
            module.Write(args[1]);
        }
    }
}
