package code

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandbox.internal/execd/internal/invalid"
)

// environ returns the code that sets variables of the environment for one cell of a language, and
// the code that sets them back afterwards. The kernel keeps in between what they were: a cell may
// have set them. It returns an [invalid.Error] for a language that this is not known of.
func environ(language string, env map[string]string) (set, restore string, err error) {
	if len(env) == 0 {
		return "", "", nil
	}
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return "", "", invalid.Errorf("environment: %.128q: the name must not be empty or have a =, nor may anything have a NUL byte",
				name)
		}
	}
	switch language {
	case "python":
		set, restore = pythonEnviron(env)
	case "javascript", "typescript":
		set, restore = scriptEnviron(env)
	case "bash":
		return bashEnviron(env)
	default:
		return "", "", invalid.Errorf("environment: cells of %s cannot have variables of their own", language)
	}
	return set, restore, nil
}

// literal writes variables as an object of JSON, which is also one of Python and of JavaScript.
func literal(env map[string]string) string {
	data, err := json.Marshal(env)
	if err != nil {
		panic(err) // strings can be encoded
	}
	return string(data)
}

// pythonEnviron binds no name of the cell's.
func pythonEnviron(env map[string]string) (set, restore string) {
	set = fmt.Sprintf(`(lambda os, new: (setattr(os, "_sandbox_environ", {k: os.environ.get(k) for k in new}), `+
		`os.environ.update(new)))(__import__("os"), %s)`, literal(env))
	restore = `(lambda os: [os.environ.pop(k, None) if v is None else os.environ.__setitem__(k, v) ` +
		`for k, v in os.__dict__.pop("_sandbox_environ", {}).items()])(__import__("os"))`
	return set, restore
}

func scriptEnviron(env map[string]string) (set, restore string) {
	const kept = `Symbol.for("sandbox.environ")`
	set = fmt.Sprintf(`void ((env, next) => {`+
		`Reflect.set(globalThis, %s, Object.fromEntries(Object.keys(next).map((k) => [k, env[k]])));`+
		`Object.assign(env, next); })(globalThis.process.env, %s)`, kept, literal(env))
	restore = fmt.Sprintf(`void ((env) => {`+
		`for (const [k, v] of Object.entries(Reflect.get(globalThis, %[1]s) ?? {})) `+
		`{ if (v === undefined) delete env[k]; else Reflect.set(env, k, v); }`+
		`Reflect.deleteProperty(globalThis, %[1]s); })(globalThis.process.env)`, kept)
	return set, restore
}

func bashEnviron(env map[string]string) (set, restore string, err error) {
	var before, after strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !isIdentifier(name) {
			return "", "", invalid.Errorf("environment: %.128q is no name of a variable of bash", name)
		}
		value := "'" + strings.ReplaceAll(env[name], "'", `'\''`) + "'"
		fmt.Fprintf(&before, "if [[ -v %[1]s ]]; then __sandbox_environ_%[1]s=$%[1]s; fi; export %[1]s=%[2]s\n",
			name, value)
		fmt.Fprintf(&after, "if [[ -v __sandbox_environ_%[1]s ]]; then export %[1]s=$__sandbox_environ_%[1]s; "+
			"unset __sandbox_environ_%[1]s; else unset %[1]s; fi\n", name)
	}
	return before.String(), after.String(), nil
}

func isIdentifier(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
