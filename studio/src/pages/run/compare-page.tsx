export default function ComparePage({ a, b }: { a: string; b: string }) { return <div className="page"><h1>{a} {b}</h1></div>; }
