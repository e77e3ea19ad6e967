// Command sbom prints the software bill of materials of Go programs, as CycloneDX JSON: the modules
// and the standard library that the Go tool has recorded in each of them. The same programs make
// the same bytes.
//
//	sbom -name NAME -version VERSION -time SECONDS PROGRAM...
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bom is the part of CycloneDX 1.5 that is written here.
type bom struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

func main() {
	name := flag.String("name", "", "`NAME` of what the programs are part of")
	version := flag.String("version", "", "its `VERSION`")
	seconds := flag.Int64("time", 0, "its time, in `SECONDS` since 1970")
	flag.Parse()
	if err := write(os.Stdout, *name, *version, time.Unix(*seconds, 0), flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

// write writes the bill of materials of the programs, which are part of what is named.
func write(out io.Writer, name, version string, made time.Time, programs []string) error {
	whole := component{Ref: "release", Type: "application", Name: name, Version: version}
	result := bom{
		Schema: "http://cyclonedx.org/schema/bom-1.5.schema.json", Format: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata: metadata{Timestamp: made.UTC().Format(time.RFC3339), Component: whole},
	}
	contains := dependency{Ref: whole.Ref, DependsOn: []string{}}
	libraries := map[string]component{}
	for _, path := range programs {
		program, used, err := read(path)
		if err != nil {
			return err
		}
		program.Version = version
		result.Components = append(result.Components, program)
		contains.DependsOn = append(contains.DependsOn, program.Ref)
		needs := dependency{Ref: program.Ref, DependsOn: []string{}}
		for _, library := range used {
			libraries[library.Ref] = library
			needs.DependsOn = append(needs.DependsOn, library.Ref)
		}
		result.Dependencies = append(result.Dependencies, needs)
	}
	result.Dependencies = append(result.Dependencies, contains)
	for _, ref := range slices.Sorted(maps.Keys(libraries)) {
		result.Components = append(result.Components, libraries[ref])
	}
	text := json.NewEncoder(out)
	text.SetEscapeHTML(false)
	text.SetIndent("", "  ")
	return text.Encode(result)
}

// read returns a program and what it is made of, by name.
func read(path string) (program component, used []component, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return component{}, nil, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return component{}, nil, fmt.Errorf("read what %s is made of: %w", path, err)
	}
	sum := sha256.Sum256(content)
	name := filepath.Base(path)
	program = component{Ref: "program/" + name, Type: "application", Name: name, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}}
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	used = append(used, library("std", goVersion))
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		used = append(used, library(module.Path, module.Version))
	}
	slices.SortFunc(used, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	return program, used, nil
}

func library(path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Ref: purl, Type: "library", Name: path, Version: version, PURL: purl}
}
