package sandbox

import _ "embed"

//go:embed llms.txt
var llms []byte

// LLMs returns llms.txt: the project, its links and the shortest programs, for language models. The
// caller must not change the bytes.
func LLMs() []byte { return llms }
