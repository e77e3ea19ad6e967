package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// configVar names another file for the contexts.
const configVar = "SANDBOX_CONTEXTS"

// contexts is the file that `login` writes: services and their keys, by name.
type contexts struct {
	Current  string             `json:"current"`
	Contexts map[string]service `json:"contexts"`

	path string
}

// service is one context.
type service struct {
	URL    string `json:"url"`
	APIKey string `json:"api_key,omitempty"`
}

// loadContexts reads the file; without one there are no contexts.
func loadContexts(env func(string) string) (*contexts, error) {
	path := env(configVar)
	if path == "" {
		directory, err := configDirectory(env)
		if err != nil {
			return nil, err
		}
		path = filepath.Join(directory, "sandbox", "contexts.json")
	}
	c := &contexts{path: path, Contexts: map[string]service{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the contexts: %w", err)
	}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read the contexts: %s: %w", path, err)
	}
	if c.Contexts == nil {
		c.Contexts = map[string]service{}
	}
	return c, nil
}

// configDirectory is os.UserConfigDir with the environment of the invocation.
func configDirectory(env func(string) string) (string, error) {
	if directory := env("XDG_CONFIG_HOME"); filepath.IsAbs(directory) && runtime.GOOS != "windows" {
		return directory, nil
	}
	if home := env("HOME"); home != "" && runtime.GOOS == "linux" {
		return filepath.Join(home, ".config"), nil
	}
	directory, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where to keep contexts: %w (or set $%s)", err, configVar)
	}
	return directory, nil
}

// save replaces the file in one step. It holds keys, so only its owner may read it.
func (c *contexts) save() error {
	directory := filepath.Dir(c.path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	// Made with mode 0600.
	file, err := os.CreateTemp(directory, ".contexts-*")
	if err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the contexts: %w", err), os.Remove(file.Name()))
	}
	if err := os.Rename(file.Name(), c.path); err != nil {
		return errors.Join(fmt.Errorf("write the contexts: %w", err), os.Remove(file.Name()))
	}
	return nil
}

func (c *contexts) names() []string { return slices.Sorted(maps.Keys(c.Contexts)) }

// get returns a context that must exist.
func (c *contexts) get(name string) (service, error) {
	found, ok := c.Contexts[name]
	if !ok {
		return service{}, usageErrorf("there is no context %q in %s", name, c.path)
	}
	return found, nil
}
