export default function RunPage({ run }: { base: string; run: string }) { return <div className="page"><h1>{run}</h1></div>; }
