package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Load reads the file at path over the defaults, then the environment through
// env, and validates the result. It reports every problem at once, as joined
// [*Problem] values in the order of the file. The exception is a file that is
// not TOML (a syntax error, a key set twice): its first error is the only
// one, because what follows cannot be trusted. A missing file is an error that
// wraps [fs.ErrNotExist] and says how to write one.
func Load(path string, env func(string) string) (Config, error) {
	doc, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{},
			fmt.Errorf("%s: %w; write one with: sandbox-server --config %[1]s config init", path, fs.ErrNotExist)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}

	idx := newIndex(doc)
	var tree map[string]any
	if err := toml.Unmarshal(doc, &tree); err != nil {
		return Config{}, syntaxProblem(path, doc, idx, err)
	}

	c := Default(env)
	var inFile, inEnv problems
	c.FromDocker = fromDocker(&inFile, tree)
	decodeTable(&inFile, "", tree, reflect.ValueOf(&c).Elem())
	c.Environment.read(&inEnv, env)
	if c.Runtime.Type != RuntimeDocker { // it is for other programs of the machine then
		c.Environment.DockerHost = defaultEnvironment().DockerHost
	}
	c.Environment.check(&inEnv)

	c.normalise(env)
	c.Server.readAPIKey(&inFile)
	for i := range c.Webhooks {
		c.Webhooks[i].readSecrets(&inFile, webhookKey(i))
	}
	c.check(&inFile)
	for _, problem := range inFile {
		problem.Key = c.Key(problem.Key)
	}
	inFile.locate(path, idx)

	if err := append(inFile, inEnv...).join(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// syntaxProblem names the place and, as far as the text allows, the key of an
// error that kept the file from being read as TOML.
func syntaxProblem(path string, doc []byte, idx *index, err error) error {
	problem := &Problem{File: path, Err: err}
	var de *toml.DecodeError
	if !errors.As(err, &de) {
		return problem
	}
	problem.Line, _ = de.Position()
	problem.Err = errors.New(strings.TrimPrefix(de.Error(), "toml: "))
	problem.Key = idx.last[problem.Line]

	text := bytes.Split(doc, []byte("\n"))[problem.Line-1]
	name, value, assigned := strings.Cut(string(text), "=")
	if problem.Key == "" && assigned && strings.TrimSpace(name) != "" {
		problem.Key = joinKey(idx.section, strings.TrimSpace(name))
	}
	switch first := idx.first[problem.Key]; {
	case strings.HasPrefix(strings.TrimSpace(value), "null"):
		problem.Err = errors.New(
			"TOML has no null: leave the key out, or write 0 where that means no limit")
	case first > 0 && first < problem.Line && strings.Contains(de.Error(), "already"):
		problem.Err = fmt.Errorf("is set twice (first in line %d)", first)
	}
	return problem
}
