// Command python writes the types and calls of a contract as a module of the Python client.
//
//	python -o _gen/execd.py execd.yaml
//
// An object is a dataclass, a set of values a Literal, a name for a string or a list is left out.
// Each call is a function that returns a description of its request, without any I/O.
package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/getkin/kin-openapi/openapi3"
)

//go:embed module.py.tmpl
var moduleTemplate string

func main() {
	output := flag.String("o", "", "the file to write")
	flag.Parse()
	if *output == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: python -o FILE CONTRACT")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *output); err != nil {
		fmt.Fprintf(os.Stderr, "python: %v\n", err)
		os.Exit(1)
	}
}

func run(contract, output string) error {
	doc, err := openapi3.NewLoader().LoadFromFile(contract)
	if err != nil {
		return err
	}
	m := module{Contract: filepath.Base(contract), Title: doc.Info.Title}
	if err := m.addSchemas(doc); err != nil {
		return fmt.Errorf("%s: %w", contract, err)
	}
	if err := m.addCalls(doc); err != nil {
		return fmt.Errorf("%s: %w", contract, err)
	}
	var source bytes.Buffer
	page, err := template.New("module").Parse(moduleTemplate)
	if err != nil {
		return err
	}
	if err := page.Execute(&source, m); err != nil {
		return err
	}
	return os.WriteFile(output, source.Bytes(), 0o644)
}
