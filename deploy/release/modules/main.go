// Command modules writes Go modules of this repository as a directory that a web server can serve
// as a GOPROXY. Usage: modules -version vX.Y.Z -seconds N -license FILE -out FOLDER MODULE...
//
// Each MODULE is the directory of a module. All of them get the version, the time (in seconds since
// 1970) and the license; their requirements of one another name that version, in place of the
// directories in which this repository has them. The same arguments make the same bytes.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	version := flag.String("version", "", "version of the modules, such as v1.2.3")
	seconds := flag.Int64("seconds", 0, "time of the version, in seconds since 1970")
	license := flag.String("license", "", "file that becomes LICENSE in every module")
	out := flag.String("out", "", "directory to write to, made when it is missing")
	flag.Parse()
	r := release{version: *version, time: time.Unix(*seconds, 0).UTC(), license: *license, out: *out}
	if err := r.write(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

// release is one version of all modules.
type release struct {
	version      string
	time         time.Time
	license, out string
}

func (r release) write(directories []string) error {
	if len(directories) == 0 || r.out == "" || r.license == "" {
		return errors.New("usage: modules -version vX.Y.Z -seconds N -license FILE -out FOLDER MODULE [MODULE]")
	}
	for _, directory := range directories {
		if err := r.writeModule(directory); err != nil {
			return fmt.Errorf("%s: %w", directory, err)
		}
	}
	return nil
}

// writeModule writes the files of the module's version, whose names `go help goproxy` has.
func (r release) writeModule(directory string) error {
	copied, err := os.MkdirTemp("", "modules-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(copied) }()
	if err := os.CopyFS(copied, os.DirFS(directory)); err != nil {
		return err
	}
	license, err := os.ReadFile(r.license)
	if err != nil {
		return err
	}
	path, requirements, err := r.requirements(filepath.Join(directory, "go.mod"))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"LICENSE": license, "go.mod": requirements} {
		if err := os.WriteFile(filepath.Join(copied, name), content, 0o600); err != nil {
			return err
		}
	}
	var archive bytes.Buffer
	if err := zip.CreateFromDir(&archive, module.Version{Path: path, Version: r.version}, copied); err != nil {
		return err
	}
	info, err := json.Marshal(struct{ Version, Time string }{r.version, r.time.Format(time.RFC3339)})
	if err != nil {
		return err
	}
	// The list has no pseudo-versions; @latest is asked where it is empty.
	list := r.version + "\n"
	if module.IsPseudoVersion(r.version) {
		list = ""
	}
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	at := filepath.Join(r.out, filepath.FromSlash(escaped))
	if err := os.MkdirAll(filepath.Join(at, "@v"), 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"@latest": info, "@v/list": []byte(list), "@v/" + r.version + ".info": info,
		"@v/" + r.version + ".mod": requirements, "@v/" + r.version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, filepath.FromSlash(name)), content, 0o644); err != nil { //nolint:gosec // it is published
			return err
		}
	}
	return nil
}

// requirements returns the module's path and its go.mod, in which every module that was replaced by
// a directory is required in the version of the release.
func (r release) requirements(file string) (path string, content []byte, err error) {
	content, err = os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	parsed, err := modfile.Parse(file, content, nil)
	if err != nil {
		return "", nil, err
	}
	for _, replaced := range parsed.Replace {
		if replaced.New.Version != "" {
			return "", nil, fmt.Errorf("%s replaces %s by another module: users of the module would not get that", file, replaced.Old.Path)
		}
		if err := parsed.AddRequire(replaced.Old.Path, r.version); err != nil {
			return "", nil, err
		}
		if err := parsed.DropReplace(replaced.Old.Path, replaced.Old.Version); err != nil {
			return "", nil, err
		}
	}
	parsed.Cleanup()
	content, err = parsed.Format()
	return parsed.Module.Mod.Path, content, err
}
