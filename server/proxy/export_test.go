package proxy

// MaxAnswerHeader bounds the header of an answer, in bytes.
const MaxAnswerHeader = maxAnswerHeader
