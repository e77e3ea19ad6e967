// Command slim writes the part of a contract that a running service needs: what its requests must look like.
//
//	slim -o rules/execd.json execd.yaml
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi/document"
)

func main() {
	output := flag.String("o", "", "the file to write")
	flag.Parse()
	if *output == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: slim -o FILE CONTRACT")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *output); err != nil {
		fmt.Fprintf(os.Stderr, "slim: %v\n", err)
		os.Exit(1)
	}
}

func run(contract, output string) error {
	doc, err := openapi3.NewLoader().LoadFromFile(contract)
	if err != nil {
		return err
	}
	rules, err := document.Rules(doc)
	if err != nil {
		return fmt.Errorf("%s: %w", contract, err)
	}
	data, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	return os.WriteFile(output, append(data, '\n'), 0o644)
}
