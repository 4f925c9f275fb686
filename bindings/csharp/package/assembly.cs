// SPDX-License-Identifier: Apache-2.0
// assembly.exe IN OUT [standard]: writes an assembly of Mono's compiler as others expect it. The lines of its sources,
// which stand next to it in Mono's own format (IN.mdb), are inside as a portable PDB; what differs from one compilation
// to the next is gone; and with `standard` it refers to .NET Standard 2.1 in place of Mono's own class library, so that
// .NET Core 3.0 and later, and whatever else has that standard, load it.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Security.Cryptography;
using Mono.Cecil;
using Mono.Cecil.Cil;
using Mono.CompilerServices.SymbolWriter;

static class Assembly
{
    static void Main(string[] args)
    {
        using (ModuleDefinition module = ModuleDefinition.ReadModule(args[0]))
        {
            if (args.Length > 2) ReferToStandard(module);
            AddLines(module, args[0] + ".mdb");
            // The id of a module is random; it becomes a hash of the rest.
            module.Mvid = Guid.Empty;
            Write(module, args[1]);
            using (SHA256 hash = SHA256.Create())
            {
                module.Mvid = new Guid(hash.ComputeHash(File.ReadAllBytes(args[1])).Take(16).ToArray());
            }
            Write(module, args[1]);
        }
    }

    static void Write(ModuleDefinition module, string path)
    {
        module.Write(path, new WriterParameters
        {
            Timestamp = 0, WriteSymbols = true, SymbolWriterProvider = new EmbeddedPortablePdbWriterProvider()
        });
    }

    static void ReferToStandard(ModuleDefinition module)
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
    }

    static void AddLines(ModuleDefinition module, string path)
    {
        Dictionary<string, Document> documents = new Dictionary<string, Document>();
        using (MonoSymbolFile symbols = MonoSymbolFile.ReadSymbolFile(path))
        {
            foreach (MethodEntry entry in symbols.Methods)
            {
                MethodDefinition method = (MethodDefinition)module.LookupToken(entry.Token);
                Dictionary<int, Instruction> at = method.Body.Instructions.ToDictionary(each => each.Offset);
                foreach (LineNumberEntry line in entry.GetLineNumberTable().LineNumbers)
                {
                    Instruction instruction;
                    if (line.Row == 0 || !at.TryGetValue(line.Offset, out instruction)) continue;
                    string name = Name(symbols.GetSourceFile(line.File).FileName);
                    Document document;
                    if (!documents.TryGetValue(name, out document))
                    {
                        document = documents[name] = new Document(name) { Language = DocumentLanguage.CSharp };
                    }
                    int begin = Math.Max(line.Column, 1);
                    method.DebugInformation.SequencePoints.Add(new SequencePoint(instruction, document)
                    {
                        StartLine = line.Row, StartColumn = begin,
                        EndLine = Math.Max(line.EndRow, line.Row), EndColumn = Math.Max(line.EndColumn, begin + 1)
                    });
                }
            }
        }
    }

    /// src/Comm.cs, wherever it was compiled.
    static string Name(string path)
    {
        return Path.GetFileName(Path.GetDirectoryName(path)) + "/" + Path.GetFileName(path);
    }
}
