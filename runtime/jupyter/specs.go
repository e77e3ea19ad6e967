package jupyter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/kernel"
)

// kernelspec is an installed kernelspec: a directory with a kernel.json.
type kernelspec struct {
	name string
	dir  string

	Argv          []string          `json:"argv"`
	Env           map[string]string `json:"env"`
	Language      string            `json:"language"`
	DisplayName   string            `json:"display_name"`
	InterruptMode string            `json:"interrupt_mode"`
}

// The values of interrupt_mode.
const (
	interruptBySignal  = "signal"
	interruptByMessage = "message"
)

// maxSpec bounds a kernel.json, in bytes.
const maxSpec = 1 << 20

// specName is what Jupyter accepts as a kernelspec's name.
var specName = pattern(`^[A-Za-z0-9._-]+$`)

// kernelDirs returns the directories that kernelspecs are looked for in, most important first, as
// jupyter_core does. What belongs to the prefix of a Python is left out, because we run in none.
func kernelDirs(env []string) []string {
	var data []string
	for _, dir := range filepath.SplitList(lookup(env, "JUPYTER_PATH")) {
		if dir != "" {
			data = append(data, dir)
		}
	}
	switch home := lookup(env, "HOME"); {
	case lookup(env, "JUPYTER_DATA_DIR") != "":
		data = append(data, lookup(env, "JUPYTER_DATA_DIR"))
	case lookup(env, "XDG_DATA_HOME") != "":
		data = append(data, filepath.Join(lookup(env, "XDG_DATA_HOME"), "jupyter"))
	case home != "":
		data = append(data, filepath.Join(home, ".local/share/jupyter"))
	}
	data = append(data, "/usr/local/share/jupyter", "/usr/share/jupyter")
	for i := range data {
		data[i] = filepath.Join(data[i], "kernels")
	}
	return data
}

// findSpecs returns the kernelspecs of the directories, sorted by name. Of two with the same name
// the first directory's wins. What is broken is logged and skipped: one invalid file must not
// remove the other languages.
func findSpecs(dirs []string, log zerolog.Logger) []kernelspec {
	found := make(map[string]kernelspec)
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn().Err(err).Msg("cannot read a directory of kernelspecs")
		}
		for _, entry := range entries {
			name := strings.ToLower(entry.Name()) // names are case-insensitive, as in Jupyter
			if _, taken := found[name]; taken || !specName().MatchString(name) {
				continue
			}
			spec, err := readSpec(filepath.Join(dir, entry.Name()))
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
				// no kernelspec at all
			case err != nil:
				log.Warn().Err(err).Msg("ignored a broken kernelspec")
			default:
				spec.name = name
				found[name] = spec
			}
		}
	}
	specs := make([]kernelspec, 0, len(found))
	for _, spec := range found {
		specs = append(specs, spec)
	}
	slices.SortFunc(specs, func(a, b kernelspec) int { return cmp.Compare(a.name, b.name) })
	return specs
}

func readSpec(dir string) (kernelspec, error) {
	spec := kernelspec{dir: dir, InterruptMode: interruptBySignal}
	path := filepath.Join(dir, "kernel.json")
	content, err := readSmall(path)
	if err != nil {
		return spec, err
	}
	if err := json.Unmarshal(content, &spec); err != nil {
		return spec, fmt.Errorf("%s: %w", path, err)
	}
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return spec, fmt.Errorf("%s: argv must name a program", path)
	}
	if mode := spec.InterruptMode; mode != interruptBySignal && mode != interruptByMessage {
		return spec, fmt.Errorf("%s: interrupt_mode must be %q or %q, not %q", path,
			interruptBySignal, interruptByMessage, mode)
	}
	return spec, nil
}

// readSmall reads a regular file of at most maxSpec bytes. The sandbox may have put there what
// blocks when it is opened, or never ends.
func readSmall(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxSpec+1))
	if err == nil && len(content) > maxSpec {
		err = fmt.Errorf("%s: longer than %d bytes", path, maxSpec)
	}
	return content, err
}

func (s kernelspec) public() kernel.Spec {
	return kernel.Spec{Name: s.name, Language: s.Language, DisplayName: s.DisplayName}
}

// argv returns the command line of a kernel that is to use the connection file.
func (s kernelspec) argv(connectionFile string) []string {
	replace := strings.NewReplacer("{connection_file}", connectionFile, "{resource_dir}", s.dir)
	argv := make([]string, len(s.Argv))
	for i, arg := range s.Argv {
		argv[i] = replace.Replace(arg)
	}
	return argv
}

// environ returns the environment of a kernel: ours without what is execd's own, and what the spec
// adds. The spec's values may name variables as ${NAME}; unknown ones stay as they are.
func (s kernelspec) environ(ours []string) []string {
	var env []string
	for _, variable := range ours {
		if !strings.HasPrefix(variable, "EXECD_") {
			env = append(env, variable)
		}
	}
	base := slices.Clone(env)
	for name, value := range s.Env {
		env = append(env, name+"="+os.Expand(value, func(variable string) string {
			if !slices.ContainsFunc(base,
				func(v string) bool { return strings.HasPrefix(v, variable+"=") }) {
				return "${" + variable + "}"
			}
			return lookup(base, variable)
		}))
	}
	return env
}

// lookup returns the value of a variable in an environment. The last one counts, as in os/exec.
func lookup(env []string, name string) string {
	for _, variable := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}
