package command

import (
	"os"
	"path/filepath"
	"strings"
)

// shell returns the argument vector that runs a command line: bash, else sh, else the built-in interpreter, for images without a shell.
func (m *Manager) shell(env []string, line string) []string {
	for _, name := range []string{"bash", "sh"} {
		if path := lookPath(name, env); path != "" {
			return []string{path, "-c", line}
		}
	}
	return append(append([]string{}, m.options.BuiltinShell...), "-c", line)
}

// lookPath finds an executable in the PATH of env, or where shells usually are.
func lookPath(name string, env []string) string {
	folders := "/usr/local/bin:/usr/bin:/bin"
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			folders = value + ":" + folders
		}
	}
	for _, folder := range filepath.SplitList(folders) {
		if !filepath.IsAbs(folder) {
			continue
		}
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}
